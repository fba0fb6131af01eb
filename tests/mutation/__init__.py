"""Mutation testing: break the code in one place after the other, and see which break no test notices.

Ours, because what decides here is SQL text and tables of data: mutmut changes nothing outside function bodies,
cosmic-ray starts an interpreter for each mutant and knows no SQL, mutatest has had no release since 2022.
"""
