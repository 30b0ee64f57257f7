"""The probe pages: what a training process writes about itself and how an agent reads it.

`writer` and `connection` run inside the training process and need the standard library only; they
never raise into user code after creation, never block on the agent, and count what they drop.
`reader` runs in the agent, needs numpy, and treats every byte of a page as hostile.
"""
