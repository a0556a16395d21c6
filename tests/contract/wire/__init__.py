"""What was written on the wire, version by version, as files to read in a diff.

    values.<v>.json           values as messages and results carry them, by type
    cell.<library>.<v>.json   every kind of key, as it lies in Redis between two calls
    calls.<library>.<r>.json  every function: what it is called with and what it answers
    functions.<library>.<r>.lua  the functions themselves
    v: version of the envelope (`broker.envelope.VERSION`)      r: `store.library.REVISION`
    library: `store.library.LIBRARY`, the version of the data

They are made by today's code with fixed ids and a clock that stands still (`frozen`), one scene
after the other (`scenes`), each in a cell of its own. `python -m tests.contract.wire` compares,
`--record` writes what is new. What has been recorded under a version is never changed: a changed
layout needs a new version, so that the build before parks what it can not read. The recordings of
older versions stay, for later builds to read; of functions, those of the build before.
"""
