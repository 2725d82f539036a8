"""Whether a machine and a configuration are fit."""

from kvconn.doctor.examination import Finding, Verdict, examine

__all__ = ["Finding", "Verdict", "examine"]
