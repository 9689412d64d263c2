"""The networks of the demo at any depth, and their race: both are trained from one start, and the recipe counts."""

from leadline.lab import demo
from leadline.records import Edit, Recipe

SCALED = Recipe(leadline="0.1.0", model="Sequential", edits=(Edit(action="rate", options={"factor": 0.0}),))


def test_a_family_has_as_many_blocks_as_asked_for_and_scales_them_by_depth():
    model = demo.residual_family(4).model
    blocks = [each for each in model if isinstance(each, demo.ResidualLayer)]
    assert [each.scale for each in blocks] == [0.5] * 4


def test_the_race_trains_both_from_one_start_and_only_the_second_with_the_recipe():
    told = []
    trial, right = demo.race(SCALED, 3, lambda *said: told.append(said))
    assert trial.untreated[0] == trial.treated[0]
    assert len(set(trial.treated)) == 1
    assert len(set(trial.untreated)) > 1
    assert all(0 <= share <= 1 for share in right)
    assert [text for _, _, text in told] == ["training the untreated network"] * 3 + [
        "training the repaired network"
    ] * 3
    assert demo.race(SCALED, 1)[0].untreated == trial.untreated[:1]
