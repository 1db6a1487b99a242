"""From any process of a job to all of them: who belongs together, what each is, and what each says of its rank."""
