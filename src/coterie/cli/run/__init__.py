"""`coterie run`: loads the program, runs it in this process or in supervised workers, reports what happens."""
