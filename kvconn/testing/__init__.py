"""What tests of backends and engines are made of; shipped, since backends are others' too."""
