"""Every private or undocumented use of MindSpore, each with what it relies on."""
