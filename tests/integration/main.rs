//! Tests on real stores. Each test has its own redis-server, its own table and its own clock.

mod api_add;
mod api_budget;
mod api_cancel;
mod api_common;
mod api_events;
mod api_inspect;
mod api_logs;
mod api_parameters;
mod api_poll;
mod api_settle;
mod cluster;
mod dispatch;
mod hand_over;
mod kill;
mod memory_pressure;
mod promises;
mod redis_trouble;
mod scenarios_calls;
mod scenarios_delivery;
mod state;
mod template;
mod ticks;
mod waiting;
mod webhook;
