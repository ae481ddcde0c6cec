//! Loopback tests of the server.
