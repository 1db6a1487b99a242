"""The report as text for a terminal: `layout` knows columns and colour, `words` sentences, `page` the order."""
