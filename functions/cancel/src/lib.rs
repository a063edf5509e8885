//! Cancels: the documented `GET`, which always answers 200, and `POST` or `DELETE`, which say why not.

use std::time::Duration;

use punctual_core::api::{Answer, Envelope, Fields, Request, note_task, serve};
use punctual_core::error::Error;
use punctual_core::service::Service;
use punctual_core::task::check_task_id;
use serde_json::value::RawValue;

/// Serves one API Gateway event.
pub async fn handle(service: &Service, event: &str) -> Answer {
    serve("cancel", event, Duration::ZERO, RawValue::FALSE, async |request| cancel(service, request).await).await
}

async fn cancel(service: &Service, request: &Request) -> Result<Envelope, Error> {
    let ["task", "cancel", id] = request.route()[..] else {
        return Err(Error::NoSuchPath);
    };
    let documented = match request.method.as_str() {
        "GET" => true,
        "POST" | "DELETE" => {
            Fields::read("body", &request.body, &[])?;
            false
        }
        _ => return Err(Error::MethodNotAllowed("GET, POST, DELETE")),
    };
    // An id that no task can have is unknown like any other.
    let outcome = match check_task_id(id) {
        Ok(()) => {
            note_task(id);
            service.cancel(id, service.clock.now()).await
        }
        Err(_) => Err(Error::NotFound(id.chars().take(100).collect())),
    };
    match outcome {
        Ok(()) => Envelope::ok(&true),
        Err(Error::NotFound(_) | Error::TaskFinished(_)) if documented => Envelope::ok(&false),
        Err(error) => Err(error),
    }
}
