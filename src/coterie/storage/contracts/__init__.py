"""What every engine must do: one module per table family, plain values and protocols."""
