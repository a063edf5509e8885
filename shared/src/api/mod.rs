//! The edge: API Gateway events in, the envelope out.

mod answer;
mod event;
mod fields;
mod new_task;
mod serve;
mod view;

pub use answer::{Answer, Envelope};
pub use event::{MAX_BODY_BYTES, Request};
pub use fields::{Fields, parse_execute_time, parse_whole_number};
pub use new_task::{NewTask, parse_addition, parse_task_type};
pub use serve::{TIME_LIMIT, note_queue, note_task, serve};
pub use view::{TaskView, doubly_encoded_length};
