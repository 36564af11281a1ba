"""What people are shown: figures, HTML and PDF reports, energy cards.

- `document`   a report as parts, whatever it is printed on; `html` and `pdf` print it
- `subject`    what a report is asked of; `of_run`, `of_sweep`, `of_search`, `of_campaign` and
  `of_study` write one each
- `run_parts`, `sweep_cells`, `campaign_table`, `sm2_course`, `study_rows`, `advice_notes`,
  `findings_blocks`   parts of them
- `stored`     sweeps and searches as they stand in the store now
- `over_time`  one policy of a campaign simulated again, to be seen over time
- `card`       the energy card of a model: `card_inference` and `card_carbon` find its figures,
  `card_figure` is one line of it, `card_svg` and `card_markdown` draw it
- `figures/`   one definition per figure, drawn interactively and as still images
- `tables/`    stored searches and sweeps as tables for `analyze`
"""
