"""One file per framework; each is imported only when it is used."""
