# Embeds templates/ and cache/schema.sql in the library as C text: sets FFA_EMBEDDED.
set(FFA_EMBEDDED "")
