// Nothing: the targets exist for their precompiled headers.
