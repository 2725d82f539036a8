"""What ``kvconn bench`` measures: always beside a limit of this machine, in the same run."""
