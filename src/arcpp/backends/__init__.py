"""What arcpp does with devices, one file per runtime. See arcpp.backends.*."""
