"""A simulation that hunts for what nobody listed: the product's own code in a modelled cluster that goes wrong.

A run is a script, a list of operations with a seed each, made from one number. Whatever an operation draws it draws
from its own seed, so that a script replays exactly, and goes on saying the same when operations are dropped from it.
That is all that is needed to make a failing script smaller; stateful tests of hypothesis draw anew after each step
that is dropped, take far longer for runs of this length, and do not survive a change of their version.
"""
