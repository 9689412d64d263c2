"""What the lab found, for readers. Needs no torch: experiments are records.

articles   the articles and their errata
words      predictions, measurements and verdicts in words
terminal   experiments as tables
figures    their charts, with what each line is
page       the same as a page for the browser, with figures
document   the same as Markdown, for the docs
formats    all of these by name
"""
