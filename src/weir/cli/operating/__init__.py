"""Commands for who looks after a Weir: health, copies, damage, certificates, tokens, what goes on."""
