"""What users' code gives is stored encrypted, if there are keys (`payload_keys`); without keys none of this runs.

O6: nothing that users' code gave can be read in the database: arguments, replies, states, values, results of steps,
payloads and results of workflows, values of deferreds, error texts, notes. Names, keys, ids and times can.

The boundary is the storage contract: `encrypt` puts an object in front of each store of an engine, which encrypts what
goes down and decrypts what comes up. So whatever is above handles plain bytes, whatever is below handles bytes that it
cannot read, and both engines are covered by the same code. A method of a contract that is neither covered nor listed
as free of payloads cannot be called: a test compares the lists.

Read `cipher` (the format, the keys), `places` (what each ciphertext is bound to), then the stores, then `rotation`.
"""
