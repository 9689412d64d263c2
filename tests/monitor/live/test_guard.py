"""Only this machine may ask, for what the page needs, and in short."""

from __future__ import annotations

import socket

import pytest

from leadline.errors import InputError
from leadline.monitor.live.server import HOST, MAX_HEADER_BYTES, MAX_URL_BYTES, prepare_server
from tests.support.live_server import Serving, begin


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    path = tmp_path_factory.mktemp("served") / "run.leadline"
    begin(path).close()
    serving = Serving(prepare_server([path]))
    yield serving
    serving.stop()


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "127.0.0.1@evil"]
)
def test_a_request_for_another_host_is_refused(served, host):
    for path in ("/", "/stream", "/runs/0/check?step=0"):
        assert served.ask(path, Host=host)[0] == 403


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST:9999", "[::1]:8080"])
def test_names_of_this_machine_are_answered_on_any_port_so_that_a_tunnel_works(served, host):
    assert served.ask("/", Host=host)[0] == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1", "http://localhost"])
def test_a_script_of_another_origin_is_refused(served, origin):
    assert served.ask("/stream", Origin=origin)[0] == 403


def test_the_pages_own_origin_is_answered(served):
    own = served.url.rstrip("/")
    assert served.ask("/runs/0/check?step=0", Origin=own, Sec_Fetch_Site="same-origin")[0] == 200


def test_a_resource_for_another_site_is_refused_and_opening_the_page_is_not(served):
    assert served.ask("/", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="no-cors")[0] == 403
    assert served.ask("/", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate")[0] == 200


@pytest.mark.parametrize(
    "path",
    ["/../../etc/passwd", "/static/../page.py", "/%2e%2e/%2e%2e/etc/passwd", "/runs/..%2f..%2fetc/check?step=0",
     "/runs/1/check?step=0", "/runs/-1/check?step=0", "/runs/run.leadline/check?step=0", "//etc/passwd"],
)  # fmt: skip
def test_no_url_reads_a_file(served, path):
    status, _, text = served.ask(path)
    assert status == 404
    assert "root:" not in text


@pytest.mark.parametrize("step", ["", "x", "-1", "1e3", "9" * 30])
def test_an_invalid_step_is_refused(served, step):
    assert served.ask(f"/runs/0/check?step={step}")[0] == 400


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_can_be_changed(served, method):
    assert served.ask("/", method=method)[0] == 405


def test_long_and_large_requests_are_refused(served):
    assert served.ask("/?" + "x" * MAX_URL_BYTES)[0] == 414
    assert served.ask("/", body=b"x" * 10)[0] == 413
    assert served.ask("/", X="y" * MAX_HEADER_BYTES)[0] == 431


def test_every_answer_says_how_it_may_be_used(served):
    for path in ("/", "/nowhere"):
        headers = served.ask(path)[1]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert "frame-ancestors 'self'" in headers["content-security-policy"]


def test_the_server_listens_on_the_loopback_interface_only(run):
    server = prepare_server([run])
    try:
        assert server.listener.getsockname()[0] == "127.0.0.1"
    finally:
        server.listener.close()
        server.runs.close()


def test_a_port_in_use_is_reported(run):
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        with pytest.raises(InputError, match="a free port"):
            prepare_server([run], taken.getsockname()[1])
