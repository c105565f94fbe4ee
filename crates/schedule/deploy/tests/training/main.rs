//! Settings of trainers against what the trainers accept: tables of their flags and rules, made from pinned versions, and
//! their own parsers where a package has them.

mod bridge;
mod corpus;
mod megatron;
mod own_parsers;
mod shell;
mod table;
mod torchtitan;
