"""Language models as judges: endpoints that are asked, questions, and how answers are read. A judge is measured before it is believed."""
