"""The kinds of edits, one or a few related ones per file; `leadline.fixes._engine.edits.all_actions` collects them."""
