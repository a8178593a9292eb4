"""A card that was bad is given out again only after a container of the operator's choice has run well on it.

What is known of such cards (:mod:`gate`, :mod:`memory`), what is to be done with one now (:mod:`decide`), and the doing
(:mod:`runner`). Until its probe has ended with 0 the agent goes on naming the card as failed, so the server needs no
rule of its own: to it such a card is a failing one.
"""
