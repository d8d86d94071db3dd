"""A migration of clients, judged before it begins by what it would lose or leave behind."""
