"""Makes systemd run agentq on this machine: the units from settings and placement, put in place.

site      what the units are for: the app, its folder, the Python, the user
render    site + settings + seats -> every file, as text; pure
install   files -> /etc, and back, without touching what somebody has edited
systemd   what systemctl is asked
"""
