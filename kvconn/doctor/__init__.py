"""Whether a machine and a configuration are fit."""

from kvconn.doctor.examination import Finding, Serve, Verdict, examine

__all__ = ["Finding", "Serve", "Verdict", "examine"]
