"""The networks of the demo, and the training of the untreated and the repaired one from the same start."""

from leadline.lab import demo
from leadline.records import Edit, Recipe

SCALED = Recipe(leadline="0.1.0", model="Sequential", edits=(Edit(action="rate", options={"factor": 0.0}),))


def test_a_family_member_has_the_requested_depth_and_scales_its_blocks_by_it():
    model = demo.residual_family(4).model
    blocks = [each for each in model if isinstance(each, demo.ResidualLayer)]
    assert [each.scale for each in blocks] == [0.5] * 4


def test_both_networks_start_equal_and_only_the_second_gets_the_recipe():
    calls = []
    trial, right = demo.compare_training(SCALED, 3, lambda *call: calls.append(call))
    assert trial.untreated[0] == trial.treated[0]
    assert len(set(trial.treated)) == 1
    assert len(set(trial.untreated)) > 1
    assert all(0 <= share <= 1 for share in right)
    assert [text for _, _, text in calls] == ["training the untreated network"] * 3 + [
        "training the repaired network"
    ] * 3
    assert demo.compare_training(SCALED, 1)[0].untreated == trial.untreated[:1]
