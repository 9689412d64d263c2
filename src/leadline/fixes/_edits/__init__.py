"""The kinds of edits, one file each; `leadline.fixes._engine.edits.all_actions` finds them."""
