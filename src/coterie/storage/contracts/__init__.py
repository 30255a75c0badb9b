"""The contracts that every engine implements: one module per family of tables, with plain values and protocols."""
