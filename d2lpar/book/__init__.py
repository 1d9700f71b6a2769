"""What only the book needs: claims, exercises, results, and the work that it measures."""

from d2lpar.book.claims import Claim as Claim, claim as claim
from d2lpar.book.results import keep as keep
