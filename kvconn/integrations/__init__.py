"""Adapters to real engines: the only place in kvconn that imports one."""
