"""The page of `dovetail serve`: a question in three fields, its answer, what-if, launch files, a study that runs."""
