"""Small models of the two protocols that everything stands on, explored in every order of their steps."""
