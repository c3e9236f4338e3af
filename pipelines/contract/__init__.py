"""What a method is and what it may know; lies below the loops."""
