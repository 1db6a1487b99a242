"""Plain data shared by every stage: what was seen (evidence) and what it means (report).

Nothing in this package imports anything else of ours, the extension, bcc or a GPU library, so it can be
loaded anywhere, also on a machine that has none of them.
"""
