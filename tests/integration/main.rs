//! Tests on real stores. Each test has its own redis-server, its own table and its own clock.

mod dispatch;
mod hand_over;
mod promises;
mod webhook;
