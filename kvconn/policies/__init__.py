"""The policies that ship with kvconn, found by entry point like everybody else's."""
