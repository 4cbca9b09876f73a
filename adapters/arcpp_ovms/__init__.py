"""In front of the OpenVINO engine: an OpenAI gateway. The OVMS node and its graph come next."""
