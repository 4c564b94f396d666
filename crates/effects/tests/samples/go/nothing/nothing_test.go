package nothing
