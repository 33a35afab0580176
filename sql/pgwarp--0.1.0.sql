\echo Use "CREATE EXTENSION pgwarp" to load this file. \quit
