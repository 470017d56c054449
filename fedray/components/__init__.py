"""What methods are composed of: schedules, compression, servers, corrections, walks."""
