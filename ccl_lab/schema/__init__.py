"""The words of the project as data (*.toml); `generate` writes their C++, Python, TypeScript and documentation forms."""
