#!/bin/sh
echo ${X:-default} %{http_code}
