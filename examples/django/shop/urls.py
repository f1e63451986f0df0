"""The project's addresses: its login, which is the operator's page's, too."""

from __future__ import annotations

from django.contrib.auth.views import LoginView
from django.urls import path

urlpatterns = [path("login/", LoginView.as_view())]
