"""The kinds of edits, one file each; `leadline.fixes.edits.all_actions` finds them."""
