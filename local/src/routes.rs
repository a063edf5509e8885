//! Which route takes a request, as API Gateway's HTTP APIs decide it.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use percent_encoding::percent_decode_str;

/// Routes, each leading to a `T`.
#[derive(Clone, Debug)]
pub struct Routes<T> {
    routes: Vec<CompiledRoute<T>>,
}

#[derive(Clone, Debug)]
struct CompiledRoute<T> {
    /// `None`: any method.
    method: Option<String>,
    segments: Vec<Segment>,
    key: String,
    target: T,
}

/// A segment of a route's path; the more specific kind is the smaller one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Segment {
    Static(String),
    Variable(String),
    /// `{proxy+}`: this segment and all that follow.
    Greedy(String),
}

impl Segment {
    fn parse(text: &str) -> Self {
        match text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) {
            Some(name) => match name.strip_suffix('+') {
                Some(name) => Segment::Greedy(name.to_owned()),
                None => Segment::Variable(name.to_owned()),
            },
            None => Segment::Static(text.to_owned()),
        }
    }

    fn rank(&self) -> u8 {
        match self {
            Segment::Static(_) => 0,
            Segment::Variable(_) => 1,
            Segment::Greedy(_) => 2,
        }
    }
}

/// A request's route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match<'a, T> {
    /// Where it leads.
    pub target: &'a T,
    /// The route as API Gateway writes it: `ANY /api/v1/task/{taskId}`.
    pub key: &'a str,
    /// What the path's variables stand for, decoded.
    pub parameters: BTreeMap<&'a str, String>,
}

impl<T> Default for Routes<T> {
    fn default() -> Self {
        Self { routes: Vec::new() }
    }
}

impl<T> Routes<T> {
    /// Adds a route with a method (or `ANY`) and a path with `{variables}`.
    pub fn add(&mut self, method: &str, path: &str, target: T) {
        self.routes.push(CompiledRoute {
            method: (method != "ANY").then(|| method.to_owned()),
            segments: path.trim_start_matches('/').split('/').map(Segment::parse).collect(),
            key: format!("{method} {path}"),
            target,
        });
        // The most specific comes first: static before variable, segment by segment, then a method before any.
        self.routes.sort_by_cached_key(|route| {
            let ranks: Vec<u8> = route.segments.iter().map(Segment::rank).collect();
            (ranks, Reverse(route.method.is_some()))
        });
    }

    /// The most specific route that takes `method` on `path`, which is as the client sent it.
    pub fn find(&self, method: &str, path: &str) -> Option<Match<'_, T>> {
        let path: Vec<&str> = path.strip_prefix('/')?.split('/').collect();
        self.routes.iter().filter(|route| route.method.as_deref().is_none_or(|wanted| wanted == method)).find_map(
            |route| {
                let parameters = parameters(&route.segments, &path)?;
                Some(Match { target: &route.target, key: &route.key, parameters })
            },
        )
    }
}

fn parameters<'a>(segments: &'a [Segment], path: &[&str]) -> Option<BTreeMap<&'a str, String>> {
    let decode = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    let mut parameters = BTreeMap::new();
    for (at, segment) in segments.iter().enumerate() {
        let sent = path.get(at).filter(|sent| !sent.is_empty())?;
        match segment {
            Segment::Static(wanted) if decode(sent) == *wanted => {}
            Segment::Static(_) => return None,
            Segment::Variable(name) => {
                parameters.insert(name.as_str(), decode(sent));
            }
            Segment::Greedy(name) => {
                parameters.insert(name.as_str(), decode(&path[at..].join("/")));
                return Some(parameters);
            }
        }
    }
    (segments.len() == path.len()).then_some(parameters)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes() -> Routes<&'static str> {
        let mut routes = Routes::default();
        for (method, path, target) in [
            ("ANY", "/task/{id}", "one"),
            ("ANY", "/task/add", "add"),
            ("GET", "/task/add", "form"),
            ("ANY", "/task/poll/{type}", "type"),
            ("ANY", "/task/poll/{type}/{priority}", "lane"),
            ("ANY", "/task", "list"),
            ("GET", "/files/{path+}", "files"),
            ("ANY", "/files/index", "index"),
        ] {
            routes.add(method, path, target);
        }
        routes
    }

    #[test]
    fn the_most_specific_route_takes_the_request() {
        let routes = routes();
        for (method, path, wanted) in [
            ("POST", "/task/add", Some("add")),
            ("GET", "/task/add", Some("form")),
            ("DELETE", "/task/7", Some("one")),
            ("GET", "/task/poll", Some("one")),
            ("POST", "/task/poll/7", Some("type")),
            ("POST", "/task/poll/7/0", Some("lane")),
            ("POST", "/task/poll/7/0/1", None),
            ("GET", "/task", Some("list")),
            ("GET", "/task/", None),
            ("GET", "/", None),
            ("GET", "", None),
            ("GET", "/Task", None),
            ("GET", "/t%61sk/%61dd", Some("form")),
            ("GET", "/files/a/b", Some("files")),
            ("GET", "/files/index", Some("index")),
            ("POST", "/files/a/b", None),
        ] {
            let found = routes.find(method, path).map(|found| *found.target);
            assert_eq!(found, wanted, "{method} {path}");
        }
    }

    #[test]
    fn variables_are_given_decoded() {
        let routes = routes();
        let found = routes.find("GET", "/task/poll/a%3Ab/0").expect("a route");
        assert_eq!(found.key, "ANY /task/poll/{type}/{priority}");
        assert_eq!(found.parameters, BTreeMap::from([("type", "a:b".to_owned()), ("priority", "0".to_owned())]));
        let found = routes.find("GET", "/files/a/b%20c").expect("a route");
        assert_eq!(found.parameters["path"], "a/b c");
    }
}
