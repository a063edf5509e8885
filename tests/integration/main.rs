//! Tests on real stores. Each test has its own redis-server, its own table and its own clock.

mod promises;
