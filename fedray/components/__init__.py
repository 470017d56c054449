"""The components of methods: schedules, compression, servers, corrections, walks."""
